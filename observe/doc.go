// Package observe is the module of what shows a service from outside: package dibsotel has spans
// and metrics for OpenTelemetry, and package dibsprom a collector for Prometheus. It is a module of
// its own, so that a service without them links neither.
package observe
