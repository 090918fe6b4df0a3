// Package observe is the module for monitoring: package dibsotel has spans and metrics for
// OpenTelemetry, and package dibsprom a collector for Prometheus. It is a separate module, so that
// other services do not link either of them.
package observe
