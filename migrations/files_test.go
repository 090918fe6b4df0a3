package migrations_test

import (
	"flag"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/migrations"
)

var update = flag.Bool("update", false, "write the catalogs instead of comparing")

const compatible = "message_store/tables/0001_message_store.sql"

var makes = regexp.MustCompile(`(?m)^create or replace (function|view) ([a-z_.0-9]+)`)

func TestEachFunctionFileMakesTheFunctionOrViewOfItsName(t *testing.T) {
	t.Parallel()
	found := 0
	for _, f := range migrations.Files() {
		if f.Object == "" {
			continue
		}
		found++
		made := makes.FindAllStringSubmatch(f.SQL, -1)
		require.Len(t, made, 1, f.Name)
		require.Equal(t, f.Object, made[0][2], f.Name)
		for line := range strings.SplitSeq(f.SQL, "\n") {
			require.NotRegexp(t, `^(create (function|view|trigger|table)|grant|revoke|drop) `, line, "%s can be applied again", f.Name)
		}
		for _, g := range f.Grants {
			require.Regexp(t, `^grant [a-z, ]+ on (function )?`+regexp.QuoteMeta(f.Object)+` to [a-z_]+$`, g, "%s grants rights to what it makes", f.Name)
		}
	}
	require.Greater(t, found, 80)
}

func TestTableFilesAreNumberedWithoutAGap(t *testing.T) {
	t.Parallel()
	next := map[string]int{}
	for _, f := range migrations.Files() {
		require.NotContains(t, f.SQL, "$file$", f.Name)
		if f.Object != "" || f.Name == "schema.sql" {
			continue
		}
		folder, name := path.Split(f.Name)
		next[folder]++
		require.Regexp(t, `^[0-9]{4}_[a-z_]+\.sql$`, name)
		require.Equal(t, next[folder], int(name[0]-'0')*1000+int(name[1]-'0')*100+int(name[2]-'0')*10+int(name[3]-'0'), f.Name)
		require.NotRegexp(t, `(?m)^create (or replace )?function`, f.SQL, "%s: functions are files of their own", f.Name)
	}
}

func TestFunctionsComeAfterThoseThatTheyNeed(t *testing.T) {
	t.Parallel()
	const body = " language sql return "
	order := testkit.Do(migrations.Order(map[string]string{
		"tables/0001_t.sql":     "create table dibs.t ();",
		"functions/a.sql":       "-- dibs.c in a comment\ncreate or replace function dibs.a()" + body + "dibs.z() + dibs.m();",
		"functions/m.sql":       "create or replace function dibs.m()" + body + "1;",
		"functions/c.sql":       "create or replace view dibs.c as select dibs.a();",
		"functions/z.sql":       "create or replace function dibs.z()\nlanguage plpgsql as $$ begin return dibs.c(); end $$;",
		"functions/other.d.sql": "create or replace function other.d()" + body + "dibs.c();",
	}))(t)
	require.Equal(t, []string{"tables/0001_t.sql", "functions/m.sql", "functions/z.sql", "functions/a.sql", "functions/c.sql", "functions/other.d.sql"}, order)

	_, err := migrations.Order(map[string]string{
		"functions/a.sql": "create or replace function dibs.a()" + body + "dibs.b();",
		"functions/b.sql": "create or replace function dibs.b()" + body + "dibs.a();",
	})
	require.ErrorContains(t, err, "needs itself")
}

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
