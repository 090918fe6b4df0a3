// Package report writes the measurements down: as JSON, as Markdown, and for benchstat.
//
// Whether a goal was met is computed from the figures of the run, here and nowhere else.
package report
