package migrations_test

import (
	"flag"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
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
	order := must.Do(migrations.Order(map[string]string{
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
