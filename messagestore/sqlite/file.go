package sqlite

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/dibs-go/dibs/messagestore"
)

// A file is the file that was opened.
type file struct {
	path string
	info os.FileInfo
}

// check must not open the file: see checkPath.
func (f *file) check() error {
	info, err := os.Stat(f.path)
	switch {
	case err != nil:
		return &openError{path: f.path, rule: "the file was there when it was opened, and is gone now", cause: err}
	case !os.SameFile(f.info, info):
		return &openError{path: f.path, rule: "another file is in the place of the one that was opened: open it again"}
	}
	return nil
}

// checkPath checks path and returns it as an absolute path. It must not open the file: SQLite's
// locks belong to the process, and closing any descriptor of the file drops them.
func checkPath(path string) (string, error) {
	refuse := func(rule string) (string, error) {
		return "", messagestore.NewInvalidError("path", path, rule)
	}
	switch {
	case path == "":
		return refuse("must not be empty: a store is kept in a file; package memory keeps one in memory")
	case strings.ContainsRune(path, 0):
		return refuse("must not contain a NUL byte")
	case path == ":memory:":
		return refuse("must be the path of a file; package memory keeps a store in memory")
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", &openError{path: path, rule: "the working folder is not known", cause: err}
	}
	info, err := os.Stat(absolute)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(absolute)); err != nil {
			return "", &openError{path: absolute, rule: "its folder cannot be used: create it first", cause: err}
		}
	case err != nil:
		return "", &openError{path: absolute, rule: "it cannot be looked at", cause: err}
	case info.IsDir():
		return "", &openError{path: absolute, rule: "it is a folder: give the path of a file in it"}
	case !info.Mode().IsRegular():
		return "", &openError{path: absolute, rule: "it is not a regular file"}
	}
	return absolute, nil
}

// making is held while a file is made: closing the new file would drop the locks that another call
// of [Open] has taken on it meanwhile.
var making sync.Mutex

// makeFile makes the file if it does not exist, for its user only: SQLite would make it readable
// for all. The files next to it get its mode. If it cannot be made, SQLite reports the reason.
func makeFile(path string) {
	making.Lock()
	defer making.Unlock()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
		_ = file.Close()
	}
}

// dataSource returns a URI for the file, with all special characters escaped. The driver itself
// waits for locks: see turn.go.
func dataSource(path string, pragmas ...string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // of a drive of Windows
	}
	u := url.URL{Scheme: "file", OmitHost: true, Path: path}
	q := url.Values{"_pragma": pragmas}
	u.RawQuery = q.Encode()
	return u.String()
}
