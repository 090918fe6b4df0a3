package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The text between these two lines of a document is made from a run.
const (
	docsBegin = "<!-- the rest is made by make bench/docs -->\n"
	docsEnd   = "<!-- end of the part made by make bench/docs -->\n"
)

// chartFolder is the folder beside the document that the charts and results.json go to.
const chartFolder = "charts"

// Docs puts results into the document at path, between its two marks, and the charts
// and results.json into the folder charts beside it.
func Docs(path string, r Results) error {
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(doc), docsBegin)
	_, after, ended := strings.Cut(rest, docsEnd)
	if !found || !ended {
		return errors.New(path + " lacks the lines between which the results go")
	}
	folder := filepath.Join(filepath.Dir(path), chartFolder)
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // it is to be read
		return err
	}
	stale, err := filepath.Glob(filepath.Join(folder, "*.svg"))
	if err != nil {
		return err
	}
	for _, file := range stale {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	if err := Write(folder, r); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(folder, reportFile)); err != nil { // the document has it
		return err
	}
	made := fmt.Sprintf("%s%s\n%s%s%s", before, docsBegin, markdown(r, chartFolder), docsEnd, after)
	return os.WriteFile(path, []byte(made), 0o644) //nolint:gosec // it is to be read
}
