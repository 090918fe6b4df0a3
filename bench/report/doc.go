// Package report writes the measurements: as JSON, as Markdown, and for benchstat.
//
// Only this package decides whether a goal was met, from the figures of the run.
package report
