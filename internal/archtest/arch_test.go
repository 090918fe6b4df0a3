package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dibs-go/dibs"

// Each package may import the packages of ours named beside it, and no other;
// a name that ends in /... stands for a tree. A package that is
// not here is not allowed to exist: a new one comes with its line.
var imports = map[string][]string{
	".":                                  {"messagestore", "messagestore/memory", "messagestore/postgres", "messagestore/sqlite"},
	"internal/calling":                   {},
	"internal/testkit":                   {},
	"logger":                             {},
	"migrations":                         {"internal/pglink"},
	"internal/exactjson":                 {"internal/text"},
	"internal/text":                      {},
	"messagestore":                       {"logger", "internal/outage", "internal/exactjson", "internal/report", "internal/calling", "internal/text"},
	"messagestore/memory":                {"messagestore", "internal/queuing", "internal/queuestate", "internal/report", "internal/removal"},
	"internal/outage":                    {"logger"},
	"internal/pglink":                    {"logger", "internal/outage", "internal/calling", "internal/text"},
	"messagestore/postgres":              {"logger", "messagestore", "internal/queuing", "internal/report", "internal/pglink", "internal/calling", "internal/text"},
	"messagestore/postgres/postgrestest": {"internal/testkit", "internal/pgtest", "messagestore", "messagestore/postgres"},
	"messagestore/postgres/admin":        {"logger", "messagestore", "messagestore/postgres", "messagestore/retention", "internal/pglink", "internal/removal", "internal/text"},
	"messagestore/retention":             {"messagestore", "internal/removal"},
	"internal/queuing":                   {"messagestore", "internal/calling", "internal/text"},
	"internal/queuestate":                {"messagestore", "internal/queuing", "internal/text"},
	"messagestore/sqlite":                {"messagestore", "internal/queuing", "internal/queuestate", "internal/report", "messagestore/retention", "internal/calling", "internal/exactjson", "internal/removal", "internal/text"},
	"messagestore/storetest":             {"messagestore", "internal/report", "internal/exactjson", "internal/testkit", "internal/removal", "internal/text"},
	"internal/waiting":                   {"logger", "messagestore", "internal/outage", "internal/text", "internal/calling"},
	"internal/removal":                   {"messagestore", "internal/text"},
	"internal/report":                    {},
	"internal/keys":                      {"messagestore", "internal/exactjson", "internal/text"},

	"queue":                        {"logger", "messagestore", "internal/queuing", "internal/calling", "internal/exactjson", "internal/waiting", "internal/text", "internal/work", "internal/outage"},
	"internal/work":                {"handler", "logger", "messagestore", "internal/queuing", "internal/outage", "internal/calling", "internal/waiting", "internal/text"},
	"internal/queuetest":           {"messagestore", "messagestore/memory", "internal/queuing", "internal/testkit"},
	"queue/cron":                   {"logger", "messagestore", "internal/queuing", "internal/outage", "internal/exactjson", "internal/text", "internal/calling"},
	"operate":                      {"messagestore", "logger", "queue/cron", "internal/queuing", "queue", "saga", "internal/outage", "consumer/operate", "inbox", "intent", "internal/intentlog", "reservation", "internal/exactjson", "internal/keys", "internal/removal", "internal/text"},
	"ui":                           {"logger", "messagestore", "consumer/operate", "intent", "operate", "queue", "queue/cron", "saga", "internal/text"},
	"consumer":                     {"logger", "messagestore", "consumer/internal/checkpoint", "internal/queuing", "internal/outage", "internal/calling", "internal/text", "internal/work"},
	"consumer/operate":             {"messagestore", "internal/queuing", "queue", "consumer/internal/checkpoint", "internal/report", "internal/text"},
	"consumer/internal/checkpoint": {"messagestore", "internal/queuing", "internal/waiting", "internal/text"},

	"upcast":                      {"messagestore", "internal/text"},
	"handler":                     {"logger", "messagestore", "upcast", "internal/calling", "internal/text"},
	"handler/handlertest":         {"handler", "messagestore", "messagestore/memory", "internal/calling", "internal/exactjson"},
	"reservation":                 {"logger", "messagestore", "handler", "internal/keys", "internal/calling", "internal/removal", "internal/text", "internal/waiting"},
	"inbox":                       {"logger", "messagestore", "reservation", "internal/keys", "internal/text"},
	"brokers/internal/receiving":  {"handler", "inbox", "logger", "messagestore", "internal/outage", "internal/calling", "internal/keys", "internal/text"},
	"brokers/internal/brokertest": {"consumer", "handler", "inbox", "logger", "messagestore", "messagestore/memory", "messagestore/sqlite", "outbox", "reservation", "internal/calling", "internal/testkit", "brokers/internal/receiving"},
	"outbox":                      {"logger", "messagestore", "internal/queuing", "handler", "queue", "internal/outage", "internal/calling", "internal/text", "internal/work"},
	"saga":                        {"logger", "messagestore", "internal/queuing", "messagestore/retention", "handler", "reservation", "internal/outage", "internal/calling", "internal/exactjson", "internal/keys", "internal/waiting", "internal/work", "internal/text"},
	"entity":                      {"logger", "messagestore", "internal/calling", "internal/exactjson", "upcast", "internal/text", "internal/removal"},
	"internal/pgtest":             {"migrations", "internal/testkit"},
	"internal/testserver":         {},
	"internal/messagedb":          {"internal/pglink", "migrations", "internal/calling"},
	"internal/demo":               {".", "logger", "examples/account", "examples/payments", "examples/standing", "examples/ticketing", "consumer", "messagestore", "messagestore/sqlite", "migrations", "internal/queuing", "queue", "queue/cron", "idempotency", "intent", "internal/intentlog"},
	"examples/...":                {"..."},
	"cmd/...":                     {"..."},

	"intent":             {"logger", "messagestore", "internal/outage", "internal/exactjson", "internal/removal", "internal/keys", "internal/waiting", "internal/calling", "internal/text", "internal/intentlog"},
	"internal/intentlog": {"messagestore", "internal/text"},
	"intent/intenttest":  {"internal/testkit", "internal/removal", "messagestore", "messagestore/memory", "messagestore/storetest", "intent", "internal/intentlog"},
	"idempotency":        {"logger", "messagestore", "internal/exactjson", "intent", "internal/text", "internal/calling"},
}

// A program that imports the store and its PostgreSQL driver links these
// modules and the standard library.
var linked = []string{
	module,
	"github.com/google/uuid",
	"github.com/jackc/pgx/v5", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/puddle/v2",
	"golang.org/x/sync", "golang.org/x/text",
	"github.com/rs/zerolog", "github.com/mattn/go-colorable", "github.com/mattn/go-isatty", "golang.org/x/sys",
}

func TestPackagesImportOnlyWhatTheyMay(t *testing.T) {
	for file, src := range files(t, ".go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		pkg := path.Dir(filepath.ToSlash(file))
		allowed, known := rule(pkg)
		if !known {
			t.Errorf("%s: say in internal/archtest/arch_test.go what %s may import", file, pkg)
			continue
		}
		for _, spec := range parsed.Imports {
			dep, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, "`\""), module+"/")
			if ours && !slices.ContainsFunc(allowed, func(pattern string) bool { return match(pattern, dep) }) {
				t.Errorf("%s: %s may not import %s", file, pkg, dep)
			}
		}
	}
}

func TestPostgresDriverLinksLittle(t *testing.T) {
	// The standard library is in no module.
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", "{{with .Module}}{{.Path}} {{$.ImportPath}}{{end}}",
		"-deps", "./messagestore", "./messagestore/postgres")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
	}
	for line := range strings.Lines(string(out)) {
		mod, pkg, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && !slices.Contains(linked, mod) {
			t.Errorf("messagestore and messagestore/postgres bring in %s", pkg)
		}
	}
}

// go install PATH@VERSION builds no module that replaces or excludes others.
func TestTheCommandCanBeInstalledByItsPath(t *testing.T) {
	src, err := os.ReadFile("cmd/dibs/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(src)) {
		if first, _, _ := strings.Cut(strings.TrimSpace(line), " "); first == "replace" || first == "exclude" {
			t.Errorf("cmd/dibs/go.mod: %s", line)
		}
	}
}

// rule finds the imports that a package may have, by its own name or its nearest tree's.
func rule(name string) ([]string, bool) {
	if allowed, ok := imports[name]; ok {
		return allowed, true
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if allowed, ok := imports[dir+"/..."]; ok {
			return allowed, true
		}
	}
	return nil, false
}

func match(pattern, name string) bool {
	tree, ok := strings.CutSuffix(pattern, "...")
	return pattern == name || ok && strings.HasPrefix(name, tree)
}

// A log has names and numbers, never content of messages: an error goes into it by [text.Log] alone, which
// leaves out the values of refused input.
func TestErrorsGoIntoLogsWithoutTheirValues(t *testing.T) {
	sources := files(t, ".go")
	for _, dir := range append([]string{"intent/redisintent"}, brokerModules...) {
		maps.Copy(sources, filesIn(t, dir, ".go"))
	}
	found := 0
	for file, src := range sources {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			if method, is := call.Fun.(*ast.SelectorExpr); is && method.Sel.Name == "Err" && len(call.Args) > 0 {
				t.Errorf("%s: an event has an error by Err, and not by Str and text.Log", set.Position(call.Pos()))
			}
			for i, arg := range call.Args {
				name, is := arg.(*ast.BasicLit)
				if !is || name.Value != `"error"` || i+1 == len(call.Args) {
					continue
				}
				found++
				value, is := call.Args[i+1].(*ast.CallExpr)
				if is {
					_, is = value.Fun.(*ast.SelectorExpr)
				}
				if !is || value.Fun.(*ast.SelectorExpr).Sel.Name != "Log" { //nolint:errcheck // it is one
					t.Errorf("%s: the error of an event is not by text.Log", set.Position(name.Pos()))
				}
			}
			return true
		})
	}
	if found < 20 {
		t.Errorf("only %d events have an error: the test looks for another shape than the code has", found)
	}
}
