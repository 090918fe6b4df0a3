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

// Docs puts results into the document at path, between its two marks, and writes results.json into
// the same folder.
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
	if err := Write(filepath.Dir(path), r); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(filepath.Dir(path), reportFile)); err != nil { // the document has it
		return err
	}
	made := fmt.Sprintf("%s%s\n%s%s%s", before, docsBegin, markdown(r), docsEnd, after)
	return os.WriteFile(path, []byte(made), 0o644) //nolint:gosec // it is to be read
}
