package cli_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// forgeries are messages that any writer of a store may have written, by the categories of records.
var forgeries = []struct {
	category messagestore.Category
	streams  []messagestore.StreamName // the last of a name is a record that is whole
	types    []string
}{
	{"account:position", []messagestore.StreamName{
		"account:position-forged+0", "account:position-forged", "account:position-bad+0", "account:position-bad", "account:position-good+7", "account:position-x+y+z", "account:position",
	}, []string{"Recorded", "Started", "Other"}},
	{"payment:intent", []messagestore.StreamName{"payment:intent-forged", "payment:intent-bad", "payment:intent-%zz", "payment:intent"}, []string{"Reserved", "Extended", "Waiting", "Released", "Confirmed", "Other"}},
	{"booking:saga", []messagestore.StreamName{"booking:saga-forged", "booking:saga-2", "booking:saga-%zz", "booking:saga"}, []string{
		"Started", "Began", "Done", "Failed", "Waiting", "Received", "Signalled", "Suspended", "Resumed", "CancelRequested", "Replied", "Completed", "SetBack", "Other",
	}},
	{"reports:schedule", []messagestore.StreamName{"reports:schedule-forged", "reports:schedule-bad", "reports:schedule-%zz", "reports:schedule"}, []string{"Scheduled", "Unscheduled", "Skipped", "Other"}},
	{"payment:keyLife", []messagestore.StreamName{"payment:keyLife", "payment:keyLife-x", "keyLife-payment", "payment+reservation-1"}, []string{"KeyLifeDeclared", "Copied", "Other"}},
}

// contents are of forged messages: what is no object, what lacks all, and numbers and texts that do not fit.
var contents = []string{
	`{}`, `null`, `[]`, `7`, `"x"`,
	`{"start":-1,"position":-1,"version":-1,"attempt":-1,"until":-1,"index":-1,"ttl":-1,"token":-1,"messageId":7,"name":7,"spec":7,"step":7}`,
	`{"start":9223372036854775807,"position":9223372036854775807,"globalPosition":9223372036854775807,"version":9223372036854775807,"until":9223372036854775807,"deadlineMillis":9223372036854775807,"ttl":9223372036854775807,"ttlMillis":9223372036854775807,"token":9223372036854775807,"attempt":9223372036854775807,"definition":"booking","name":"bad","spec":"@every 1ns","session":"S","step":"flight","messageId":"0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6b","next":9223372036854775807,"retryAt":9223372036854775807,"deadline":9223372036854775807}`,
	`{"start":1e400,"position":1e400,"version":1e400,"until":1e400,"attempts":1e30,"members":[{}],"parts":[{}],"group":{"members":[{"lease":9223372036854775807}],"parts":[{"slots":7}]},"failing":[{"position":-1}]}`,
	`{"definition":"","version":1,"input":null,"name":"","spec":"","session":"","step":"","messageId":"","consumer":"","reason":"` + strings.Repeat("\\u202e", 10) + `"}`,
	`{"start":0,"position":0,"group":{"members":[],"parts":[]},"failing":[{}],"failingCount":-7}`,
}

// foreignWriter writes messages as another client of message-db does, on PostgreSQL: to streams of names that the library refuses, too.
func foreignWriter(t *testing.T, dibs *shell) func(stream, of, content string) {
	t.Helper()
	where := dibs.env["DIBS_STORE"]
	if strings.HasPrefix(where, "sqlite:") {
		return func(string, string, string) {}
	}
	db, err := sql.Open("pgx", where)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return func(stream, of, content string) {
		_, err := db.ExecContext(t.Context(), "SELECT message_store.write_message(gen_random_uuid()::varchar, $1, $2, $3::jsonb)", stream, of, content)
		require.NoError(t, err)
	}
}

func TestOneForgedRecordDeniesNoAnswer(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		for i := range 3 {
			dibs.ok(t, "write", fmt.Sprint("account-", i), "Opened", `{}`)
		}
		catchUp(t, store, "account", "bad", errUnwanted)
		catchUp(t, store, "account", "good", errUnwanted)
		m := manager(t, store, nil)
		for _, key := range []string{"good", "bad"} {
			hold(t, m, intent.Request{Key: key, Session: "A", TTL: time.Hour})
			dibs.ok(t, "cron", "set", "reports", key, "@daily", "Report")
		}
		sagas(t, store)
		turns(t, store)
		positioned(t, dibs)
		dibs.ok(t, "queue", "pause", "mail", "--category", "mail:item")

		// whole has what each answer has of the records that are whole.
		looks := 0
		whole := func(forged string) {
			looks++
			late := fmt.Sprint("late", looks) // behind what is forged
			hold(t, m, intent.Request{Key: late, Session: "A", TTL: time.Hour})
			dibs.ok(t, "cron", "set", "reports", late, "@daily", "Report")
			dibs.ok(t, "write", "booking:saga-"+late, "Started", `{"definition":"booking","version":1,"input":1}`)
			catchUp(t, store, "account", late, errUnwanted)
			for _, q := range []struct {
				command string
				has     []string
			}{
				{"consumers --json", []string{`"good"`, late}},
				{"top --times 1 --json", []string{`"good"`, late, `"mail"`}},
				{"parked --json", []string{`"good"`, late}},
				{"intents --json", []string{`"good"`, late}},
				{"saga --json", []string{`"id":"1"`, `"id":"3"`, late}},
				{"cron ls --json", []string{`"good"`, late}},
				{"queue ls --json", []string{`"mail"`}},
				{"queue blocked", []string{"mail"}},
				{"report streams --json", []string{`"account-0"`}},
				{"verify --json", []string{`"checked"`}},
				{"doctor", []string{"\n"}},
			} {
				r := dibs.run(t, strings.Fields(q.command)...)
				for _, has := range q.has {
					if !strings.Contains(r.stdout, has) {
						t.Errorf("behind %s, %s has no %s: code %d, %.600s\n%.600s", forged, q.command, has, r.code, r.stderr, r.stdout)
					}
				}
				if r.code > 1 {
					t.Errorf("behind %s, %s ends with %d: %s", forged, q.command, r.code, r.stderr)
				}
			}
		}
		whole("nothing")
		require.False(t, t.Failed())
		foreign := foreignWriter(t, dibs)
		for _, f := range forgeries {
			for _, of := range f.types {
				for i, content := range contents {
					forged := messagestore.Raw{Type: of, Data: []byte(content)}
					for _, stream := range f.streams {
						each := []messagestore.StreamName{stream}
						if strings.Contains(string(stream), "-forged") { // the only message of its stream, too
							each = append(each, messagestore.StreamName(strings.Replace(string(stream), "-forged", fmt.Sprint("-forged", of, i), 1)))
						}
						for _, stream := range each {
							if _, err := store.Write(t.Context(), stream, messagestore.AnyVersion, forged); !errors.Is(err, messagestore.ErrInvalid) {
								require.NoError(t, err)
							}
						}
					}
					for _, name := range []string{"-", "-\n", "-+", "-bad+", "-+x", "--", "-" + strings.Repeat("x", 900)} {
						foreign(string(f.category)+name, of, content)
					}
					if testkit.Long() {
						whole(fmt.Sprintf("%s %s %.40s", f.category, of, content))
					}
				}
			}
			if whole(string(f.category)); t.Failed() {
				return
			}
		}
	})
}
