package archtest

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	documented := map[string]bool{}
	for path, src := range files(t, ".go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, src, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(path)
		documented[dir] = documented[dir] || file.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment", dir)
		}
	}
}

func TestTheRootNamesEveryPackage(t *testing.T) {
	page, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, link := range regexp.MustCompile(`\[`+module+`/(\S+)\] `).FindAllSubmatch(page, -1) {
		named[string(link[1])] = true
	}
	for path := range files(t, ".go") {
		dir := filepath.ToSlash(filepath.Dir(path))
		inner := slices.ContainsFunc(strings.Split(dir, "/"), func(part string) bool {
			return slices.Contains([]string{".", "internal", "cmd", "examples"}, part)
		})
		if !inner && !named[dir] {
			t.Errorf("doc.go: no line for %s", dir)
		}
	}
	for dir := range named {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("doc.go: %v", err)
		}
	}
}

// No test waits for the real clock: time.Sleep is for synctest's bubbles.
func TestTestsSleepOnlyInBubbles(t *testing.T) {
	sleep := []byte("time.Sleep" + "(") // in two, so that this file has none
	for path, src := range files(t, "_test.go") {
		if bytes.Contains(src, sleep) && !bytes.Contains(src, []byte(`"testing/synctest"`)) {
			t.Errorf("%s: sleeps outside a synctest bubble", path)
		}
	}
}

// The program of the README is examples/quickstart, whole.
func TestReadmeShowsTheQuickstart(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("examples/quickstart/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if shown := "```go\n" + string(program) + "```\n"; !bytes.Contains(readme, []byte(shown)) {
		t.Error("README.md does not show examples/quickstart/main.go as it is")
	}
}

// inAFunction returns a block of Go as it is in a function of a program.
func inAFunction(block []byte) []byte {
	return regexp.MustCompile(`(?m)^(.)`).ReplaceAll(block, []byte("\t$1"))
}

// The tutorial shows each file of its service, whole.
func TestTutorialShowsTheFirstService(t *testing.T) {
	const page, dir = "docs/first-service.md", "examples/firstservice"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, block := range regexp.MustCompile("(?ms)^`([a-z_]+\\.go)`:\n\n```go\n(.*?)\n```$").FindAllSubmatch(text, -1) {
		shown[string(block[1])] = string(block[2])
	}
	for path, src := range files(t, ".go") {
		if filepath.Dir(path) != dir || filepath.Base(path) == "service_test.go" || filepath.Base(path) == "testing_test.go" { // of the tutorial, and of docs/testing.md
			continue
		}
		if shown[filepath.Base(path)] != strings.TrimSpace(string(src)) {
			t.Errorf("%s: does not show %s as it is", page, path)
		}
		delete(shown, filepath.Base(path))
	}
	for file := range shown {
		t.Errorf("%s: shows %s, which is not in %s", page, file, dir)
	}
}

// Go finds a module that is not published by a replacement only, so the start page has one for each that services import.
func TestDocsNameEachModuleOfAService(t *testing.T) {
	page, err := os.ReadFile("docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	modules, err := filepath.Glob("*/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, deep := range []string{"*/*/go.mod", "*/*/*/go.mod"} {
		found, err := filepath.Glob(deep)
		if err != nil {
			t.Fatal(err)
		}
		modules = append(modules, found...)
	}
	ours := []string{"bench", "cmd", "internal", "soak", "tools"}
	for _, file := range modules {
		dir := filepath.ToSlash(filepath.Dir(file))
		if first, _, _ := strings.Cut(dir, "/"); slices.Contains(ours, first) {
			continue
		}
		if line := "\ngo mod edit -replace github.com/dibs-go/dibs/" + dir + "=../dibs/" + dir + "\n"; !bytes.Contains(page, []byte(line)) {
			t.Errorf("docs/README.md: no replacement of the module %s", dir)
		}
	}
}

// A page shows a file of the tree under its path: `examples/ticketing/http.go`: and then a block.
func TestPagesShowFilesAsTheyAre(t *testing.T) {
	const least = 1
	shown := 0
	for page, text := range files(t, ".md") {
		for _, block := range regexp.MustCompile("(?ms)^`([a-z_/]+/[a-z_]+\\.go)`:\n\n```go\n(.*?)\n```$").FindAllSubmatch(text, -1) {
			shown++
			src, err := os.ReadFile(string(block[1]))
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			if strings.TrimSpace(string(src)) != string(block[2]) {
				t.Errorf("%s: does not show %s as it is", page, block[1])
			}
		}
	}
	if shown < least {
		t.Errorf("%d files are shown, at least %d are", shown, least)
	}
}

// brokerModules are modules of their own.
var brokerModules = []string{"brokers/nats", "brokers/redis", "brokers/kafka", "brokers/rabbitmq"}

// The Go of these pages is part of a program that is tested, word for word, or in a function of it.
func TestPagesShowCodeThatIsTested(t *testing.T) {
	block := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	for page, dirs := range map[string][]string{
		"docs/evolving.md":    {"examples/evolving"},
		"docs/intents.md":     {"intent/intenttest", "idempotency"},
		"docs/testing.md":     {"examples/firstservice", "examples/ticketing", "inbox", "outbox", "queue", "saga"},
		"docs/queue.md":       {"queue"},
		"docs/read-models.md": {"examples/readmodel"},
		"docs/relay.md":       {"brokers/nats", "brokers/redis", "inbox", "outbox"},
		"docs/saga.md":        {"examples/booking", "examples/transfer", "saga"},
	} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var program []byte
		for _, dir := range dirs {
			all, err := filepath.Glob(filepath.Join(dir, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range all {
				src, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				program = append(program, src...)
			}
		}
		blocks := block.FindAllSubmatch(text, -1)
		if len(blocks) == 0 {
			t.Errorf("%s: it shows no Go", page)
		}
		for _, found := range blocks {
			if !bytes.Contains(program, found[1]) && !bytes.Contains(program, inAFunction(found[1])) {
				t.Errorf("%s: this is not in %s:\n%s", page, strings.Join(dirs, ", "), found[1])
			}
		}
	}
}

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
	link      = regexp.MustCompile(`\]\(<?([^)>\s]+)|(?m:^\[[^\]]+\]: *<?([^>\s]+))`)
	scheme    = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
)

func TestLinksPointAtFiles(t *testing.T) {
	for path, src := range files(t, ".md") {
		prose := codeSpan.ReplaceAll(codeBlock.ReplaceAll(src, nil), nil)
		for _, match := range link.FindAllSubmatch(prose, -1) {
			target := string(match[1]) + string(match[2])
			file, _, _ := strings.Cut(target, "#")
			if file == "" || scheme.MatchString(target) {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), file)); err != nil {
				t.Errorf("%s: no file for link %s", path, target)
			}
		}
	}
}

// A promise is as good as the test that it names: `TestX`, or `TestX/Case/Other case`.
var (
	named    = regexp.MustCompile("`((?:Test|Fuzz|Example)[^`\n]*)`")
	function = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)
)

func TestGuaranteesNameTestsThatExist(t *testing.T) {
	const page = "docs/guarantees.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string][]byte{} // by folder
	declared := map[string][]string{}
	all := files(t, ".go")
	for _, dir := range append([]string{"serve", "soak"}, brokerModules...) {
		maps.Copy(all, filesIn(t, dir, ".go"))
	}
	for path, src := range all {
		dir := filepath.Dir(path)
		sources[dir] = append(sources[dir], src...)
		for _, match := range function.FindAllSubmatch(src, -1) {
			declared[string(match[1])] = append(declared[string(match[1])], dir)
		}
	}

	for _, match := range named.FindAllSubmatch(text, -1) {
		name := string(match[1])
		test, cases, _ := strings.Cut(name, "/")
		if declared[test] == nil {
			t.Errorf("%s: there is no function %s", page, test)
			continue
		}
		// The conformance suite's cases are not where the test that runs them is.
		dirs := append(slices.Clone(declared[test]), "messagestore/storetest")
		if cases != "" && !slices.ContainsFunc(dirs, func(dir string) bool { return says(sources[dir], cases) }) {
			t.Errorf("%s: %s has no case %s", page, test, cases)
		}
	}
}

// says tells whether the source has the name of a case: as a whole, or its parts
// one by one, where go test prints a space as an underscore.
func says(src []byte, name string) bool {
	if bytes.Contains(src, []byte(`"`+name+`"`)) || bytes.Contains(src, []byte(`"`+strings.ReplaceAll(name, "_", " ")+`"`)) {
		return true
	}
	slash := strings.LastIndex(name, "/")
	return slash > 0 && says(src, name[:slash]) && says(src, name[slash+1:])
}

// files gives the files of the library and the command whose names end so. Other folders with a
// go.mod of their own, hidden ones and test data are other people's.
func files(t *testing.T, suffix string) map[string][]byte {
	t.Helper()
	return filesIn(t, ".", suffix)
}

func filesIn(t *testing.T, root, suffix string) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && isApart(path, entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, suffix):
			return nil
		}
		found[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func isApart(path, name string) bool {
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil && path != "cmd/dibs" || strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules"
}
