package postgres_test

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
)

// A called is how a call is cut: in these scenes, or, where there are none, why it is not.
type called struct {
	scenes []string
	why    string
}

// calls are all there are. A new call needs a line here.
var calls = map[string]called{
	"Driver.Append":          {scenes: []string{"append one", "append several", "append each", "append one that conflicts", "append one twice", "in a transaction", "append with a take"}},
	"Driver.TryAppend":       {scenes: []string{"append or meet", "append or meet that meets", "append or meet a large message", "append or meet each"}},
	"Driver.AppendAll":       {scenes: []string{"append to streams", "WriteStreams"}},
	"Driver.ReadStream":      {scenes: []string{"read stream", "read stream backwards"}},
	"Driver.ReadCategory":    {scenes: []string{"read category", "read category by types", "read category by correlation", "read category by group"}},
	"Driver.Last":            {scenes: []string{"last"}},
	"Driver.Version":         {scenes: []string{"version"}},
	"Driver.Heads":           {scenes: []string{"heads"}},
	"Driver.Find":            {scenes: []string{"find"}},
	"Driver.Count":           {scenes: []string{"count"}},
	"Driver.Categories":      {scenes: []string{"categories"}},
	"Driver.Report":          {scenes: []string{"report"}},
	"Driver.Epoch":           {scenes: []string{"epoch"}},
	"Driver.Now":             {scenes: []string{"now"}},
	"Driver.Listen":          {scenes: []string{"listen"}},
	"Driver.Transact":        {scenes: []string{"transact", "transact that conflicts", "transact with *sql.Tx"}},
	"Driver.QueueTake":       {scenes: []string{"queue take", "queue complete", "queue retry", "queue wait", "queue suspend", "queue complete turn", "append with a take"}},
	"Driver.QueueReady":      {scenes: []string{"queue ready"}},
	"Driver.QueueExtend":     {scenes: []string{"queue extend"}},
	"Driver.QueueLeave":      {scenes: []string{"queue leave"}},
	"Driver.QueueFinish":     {scenes: []string{"queue finish"}},
	"Driver.QueueChange":     {scenes: []string{"queue change"}},
	"Driver.QueuePark":       {scenes: []string{"queue park"}},
	"Driver.QueueRemove":     {scenes: []string{"queue remove"}},
	"Driver.QueueItem":       {scenes: []string{"queue item"}},
	"Driver.QueueItems":      {scenes: []string{"queue items"}},
	"Driver.Queues":          {scenes: []string{"queue states"}},
	"Driver.Over":            {why: "it asks nothing"},
	"Driver.Stage":           {why: "it is in the caller's transaction: its COMMIT is the caller's call"},
	"Driver.Check":           {why: "it only reads"},
	"Driver.TrimCheckpoints": {why: "it is a call of the function that trim calls, and is made again after each lost answer"},
	"Driver.Close":           {why: "it asks nothing; open calls it"},
	"Driver.Connections":     {why: "it asks nothing"},
	"Driver.Forgets":         {why: "it asks nothing"},
	"Admin.Trim":             {scenes: []string{"trim"}},
	"Admin.TrimCategory":     {scenes: []string{"trim a category"}},
	"Admin.Delete":           {scenes: []string{"delete", "erase"}},
	"Admin.Forget":           {scenes: []string{"forget"}},
	"Admin.RaiseEpoch":       {scenes: []string{"raise epoch"}},
	"Admin.Verify":           {why: "it only reads, in a transaction that cannot write"},
}

// ofTests are methods that only tests have.
var ofTests = regexp.MustCompile(`(?m)^func \(\w+ \*(Driver|Admin)\) (\w+)\(`)

func TestEveryCallIsCutOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	there, played := map[string]bool{}, map[string]bool{}
	for _, of := range []reflect.Type{reflect.TypeFor[*postgres.Driver](), reflect.TypeFor[*admin.Admin]()} {
		for method := range of.Methods() {
			there[of.Elem().Name()+"."+method.Name] = true
		}
	}
	source := must.Do(os.ReadFile("export_test.go"))(t)
	for _, method := range ofTests.FindAllStringSubmatch(string(source), -1) {
		delete(there, method[1]+"."+method[2])
	}
	for _, s := range scenes(everyChange) {
		name, _, _ := strings.Cut(s.name, ": ")
		played[name] = true
	}

	require.Empty(t, unaccounted(there, played, calls))
}

// unaccounted returns the errors in a list of calls, given the calls that exist and the names of
// the scenes.
func unaccounted(there, played map[string]bool, list map[string]called) (wrong []string) {
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if _, ok := list[name]; !ok {
			wrong = append(wrong, name+" is not listed")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		c := list[name]
		if !there[name] {
			wrong = append(wrong, name+" is not there")
		}
		if (len(c.scenes) == 0) != (c.why != "") {
			wrong = append(wrong, name+" has either scenes or a reason")
		}
		for _, s := range c.scenes {
			if !played[s] {
				wrong = append(wrong, fmt.Sprintf("%s: there is no scene %q", name, s))
			}
		}
	}
	return wrong
}

func TestCallThatIsNotAccountedForIsSeen(t *testing.T) {
	t.Parallel()
	there, played := map[string]bool{"Driver.Append": true, "Admin.Verify": true}, map[string]bool{"append one": true}
	right := map[string]called{"Driver.Append": {scenes: []string{"append one"}}, "Admin.Verify": {why: "it only reads"}}
	require.Empty(t, unaccounted(there, played, right))
	for want, change := range map[string]func(list map[string]called){
		"Admin.Verify is not listed":                 func(list map[string]called) { delete(list, "Admin.Verify") },
		"Admin.Close is not there":                   func(list map[string]called) { list["Admin.Close"] = called{why: "it was there once"} },
		"Admin.Verify has either scenes or a reason": func(list map[string]called) { list["Admin.Verify"] = called{} },
		"Driver.Append has either scenes or a reason": func(list map[string]called) {
			list["Driver.Append"] = called{scenes: []string{"append one"}, why: "no time"}
		},
		`Driver.Append: there is no scene "append three"`: func(list map[string]called) {
			list["Driver.Append"] = called{scenes: []string{"append one", "append three"}}
		},
	} {
		list := maps.Clone(right)
		change(list)
		require.Equal(t, []string{want}, unaccounted(there, played, list))
	}
}
