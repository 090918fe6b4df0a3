// Package saga runs a process over several steps, each recorded, that ends done or undone.
package saga
