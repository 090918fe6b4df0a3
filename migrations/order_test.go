package migrations_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/migrations"
)

// From 16 on PostgreSQL sorts the rows for an aggregate that has distinct or an order of its
// own, and those beside it get the sorted rows. The tests run on servers that do not: so it is
// the text that is looked at.
func TestNoAggregateChangesTheOrderThatAnotherTakesRowsIn(t *testing.T) {
	t.Parallel()
	found := 0
	for _, file := range migrations.Files() {
		n, wrong := disordered(file.SQL)
		found += n
		require.Empty(t, wrong, file.Name)
	}
	require.Greater(t, found, 20)
}

func TestDisorderIsSeen(t *testing.T) {
	t.Parallel()
	for text, expected := range map[string]int{
		"select array_agg(a), count(distinct b) from t":                                    1,
		"select array_agg(a), string_agg(b, ',' order by b) from t":                        1,
		"select array_agg(a order by a), count(distinct b) from t":                         0,
		"select array_agg(a), (select count(distinct b) from u) from t":                    0,
		"select array_agg(a), count(*) from (select distinct b from u order by 1) t":       0,
		"select array_agg(a) from t; select count(distinct b) from u":                      0,
		"select array_agg((select max(c) from u order by 1)), count(b) from t":             0,
		"select array_agg(a) -- count(distinct b)\nfrom t where c = ' count(distinct b) '": 0,
		"select array_agg(a), bool_or(b is distinct from c) from t":                        0,
		"select array_agg(a) from t union all select array_agg(distinct b) from u":         0,
	} {
		_, wrong := disordered(text)
		require.Len(t, wrong, expected, text)
	}
}

var (
	notCode    = regexp.MustCompile(`(?m)--.*$|'[^']*'`)
	aggregates = regexp.MustCompile(`^(array_agg|string_agg|jsonb?_agg|jsonb?_object_agg|xmlagg|count|sum|min|max|bool_or|bool_and)$`)
	takesOrder = regexp.MustCompile(`_agg$|^xmlagg$`)
	words      = regexp.MustCompile(`[a-z_0-9]+|[();]`)
)

// A query is one select, with its aggregates.
type query struct {
	asItComes []string // that have no order, and whose answer hangs on it
	sorted    []string // that have one, or distinct
}

// A level is the text within a pair of parentheses.
type level struct {
	queries   []*query
	aggregate string // whose arguments these are, or ""
	orders    bool   // one that has an order
}

// disordered returns how many aggregates there are in an SQL text, and the queries in which one
// changes the order that another takes rows in.
func disordered(text string) (found int, wrong []string) {
	text = strings.ToLower(notCode.ReplaceAllString(text, " ''"))
	levels, before := []*level{{queries: []*query{{}}}}, ""
	report := func(closed *level) {
		for _, q := range closed.queries {
			if len(q.asItComes) > 0 && len(q.sorted) > 0 {
				wrong = append(wrong, fmt.Sprintf("%s beside %s", q.asItComes, q.sorted))
			}
		}
	}
	for _, word := range words.FindAllString(text, -1) {
		top := levels[len(levels)-1]
		switch word {
		case "(":
			inner := &level{queries: []*query{{}}}
			if aggregates.MatchString(before) {
				inner.aggregate = before
				found++
			}
			levels = append(levels, inner)
		case ")":
			if len(levels) == 1 {
				break
			}
			report(top)
			levels = levels[:len(levels)-1]
			outer := levels[len(levels)-1]
			q := outer.queries[len(outer.queries)-1]
			switch {
			case top.aggregate == "":
			case top.orders:
				q.sorted = append(q.sorted, top.aggregate)
			case takesOrder.MatchString(top.aggregate):
				q.asItComes = append(q.asItComes, top.aggregate)
			}
		case ";":
			levels = slices.Delete(levels, 0, len(levels)-1)
			report(levels[0])
			levels[0] = &level{queries: []*query{{}}}
		case "select":
			top.queries = append(top.queries, &query{})
		case "distinct", "order":
			top.orders = top.orders || before != "is" && before != "not" // is distinct from
		}
		before = word
	}
	report(levels[0])
	return found, wrong
}
