package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/bench/cases"
	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/report"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/internal/testkit"
)

func TestMain(m *testing.M) {
	measure.RunChild() // cells start this program
	server.RunService()
	goleak.VerifyTestMain(m)
}

// turns are the days on which each case has its turn.
const turns = 3

// A cell checks its work against the stored rows, and fails if they differ.
func TestEveryContenderDoesItsWork(t *testing.T) {
	servers := server.NewSet("")
	t.Cleanup(func() { require.NoError(t, servers.Stop()) })
	options := measure.Options{Servers: servers, Rounds: 1, Time: 50 * time.Millisecond, Warmup: 10 * time.Millisecond, Smoke: true, Seed: 1}
	all := cases.All()
	require.NoError(t, measure.Validate(all))

	for i, c := range all {
		t.Run(c.Name, func(t *testing.T) {
			testkit.TakesTurns(t, i%turns, turns)
			measure.Run(t.Context(), []measure.Case{c}, options, func(_ measure.Case, r measure.Result, err error) {
				require.NoError(t, err)
				for _, contender := range r.Contenders {
					require.Len(t, r.Rounds[contender], 1, contender)
				}
				for _, goal := range report.NewCase(r).Goals {
					require.NotZero(t, goal.Figure, "nothing was measured for %v", goal)
				}
			})
		})
	}
}

func TestRunIsReportedAndGoesIntoTheDocument(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, run{Only: "^write/1-category/1-caller$", Rounds: 1, Seconds: 0.05, Out: dir, Dir: "/var/tmp"}.Run(t.Context()))

	results, err := report.Read(dir)
	require.NoError(t, err)
	require.Len(t, results.Cases, 1)
	require.Len(t, results.Cases[0].Contenders, 2)
	require.NotZero(t, results.Run.Seed)
	require.Contains(t, report.Goals(results), "| Write at an expected version, one hot category, 1 caller | Dibs: p50 ≤ 1x message-db |")
	require.Equal(t, []string{"--only=^write/1-category/1-caller$", "--rounds=1", "--seconds=0.05"}, results.Run.Arguments)
	require.Contains(t, results.Run.Versions, "PostgreSQL")

	page, err := os.ReadFile("RESULTS.md")
	require.NoError(t, err)
	path := filepath.Join(dir, "RESULTS.md")
	require.NoError(t, os.WriteFile(path, page, 0o600))
	require.NoError(t, docs{From: []string{dir}, Path: path}.Run())
	made, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(made), "`write/1-category/1-caller`")
	lines, err := os.ReadFile(filepath.Join(dir, report.BenchstatFile))
	require.NoError(t, err)
	require.Regexp(t, `(?m)^BenchmarkWrite/1-category/1-caller/by=Dibs 1 [\d.]+ ns/op .* p50-ns`, string(lines))
}

func TestUnknownCaseIsRefused(t *testing.T) {
	require.ErrorContains(t, run{Only: "no-such-case"}.Run(t.Context()), `no case has a name that matches "no-such-case"`)
	require.ErrorContains(t, run{Only: "("}.Run(t.Context()), "--only: error parsing regexp")
}
