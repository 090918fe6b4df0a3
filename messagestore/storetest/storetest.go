// Package storetest tests the promises of [messagestore.Driver]. A driver's test file calls [Run]
// and needs little else:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, storetest.Options{Open: func(t *testing.T) messagestore.Driver { return memory.New() }})
//	}
//
// Every sub-test is named by the promise that it tests, S1 to S8, or by a method. Each can fail:
// the package's own tests break a driver in one way after another and require that the right
// sub-test notices.
package storetest

import (
	"testing"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// Options describe the driver to test.
type Options struct {
	// Open returns a driver. It is called once for each sub-test. The sub-tests run in parallel,
	// each with its own categories, so all drivers may use one database. Open must close its driver
	// with t.Cleanup.
	Open func(t *testing.T) messagestore.Driver

	// Reopen closes a driver that Open returned and opens another on the same database, like a
	// process that restarts.
	//
	// Defaults to leaving out the sub-test that needs it.
	Reopen func(t *testing.T, driver messagestore.Driver) messagestore.Driver

	// Beside opens another driver on the database of a driver that Open returned, like another
	// process.
	//
	// Defaults to leaving out the sub-tests that need it.
	Beside func(t *testing.T, driver messagestore.Driver) messagestore.Driver

	// OneUser says that the driver is over a transaction and has one user. Sub-tests with several
	// users are left out.
	//
	// Defaults to many users.
	OneUser bool
}

// Run tests the drivers that [Options.Open] returns. It skips the sub-tests that are left out, with
// the reason.
func Run(t *testing.T, options Options) {
	t.Helper()
	for _, test := range tests() {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, newFixture(t, options, test.needs))
		})
	}
}

// A test is one sub-test of the suite.
type test struct {
	name  string
	needs need
	run   func(t *testing.T, f *fixture)
}

// A need is an ability of a driver that a sub-test requires; without it the sub-test is skipped.
type need uint16

const (
	manyUsers need = 1 << iota
	reopening
	another
	telling
)

func tests() []test {
	var all []test
	for _, subject := range [][]test{
		writeTests, batchTests, idempotenceTests, fidelityTests, streamTests, categoryTests, groupTests,
		lastTests, findTests, concurrencyTests, orderTests, contextTests, atomicTests, meetTests, pastTests, modelTests, reportTests, headsTests, clockTests, checkTests, trimTests,
	} {
		all = append(all, subject...)
	}
	return all
}

// A fixture is the driver, store and category of a sub-test.
type fixture struct {
	driver messagestore.Driver
	store  *messagestore.Store // over driver, with pages of three messages

	category messagestore.Category // that no other sub-test uses
	options  Options
}

func newFixture(t *testing.T, options Options, needs need) *fixture {
	t.Helper()
	switch {
	case needs&manyUsers != 0 && options.OneUser:
		t.Skip("not applicable: the driver has one user")
	case needs&reopening != 0 && options.Reopen == nil:
		t.Skip("not applicable: the suite is not told how to reopen the driver")
	case needs&another != 0 && options.Beside == nil:
		t.Skip("not applicable: the suite is not told how to open a second driver beside the first")
	}
	f := &fixture{driver: options.Open(t), category: Category(t), options: options}
	f.store = testkit.Must(messagestore.New(f.driver, &messagestore.Config{BatchSize: 3}))
	if needs&telling != 0 && !tellsHeads(t, f.driver) {
		t.Skipf("not applicable: heads: %v", messagestore.ErrNotSupported)
	}
	return f
}

// stream returns a stream of the fixture's category.
func (f *fixture) stream(ids ...string) messagestore.StreamName {
	if len(ids) == 0 {
		ids = []string{"1"}
	}
	return f.category.Stream(ids[0]).With(ids[1:]...)
}

// named returns a stream of c with an unescaped identifier, which other clients may use.
func named(c messagestore.Category, id string) messagestore.StreamName {
	return messagestore.StreamName(string(c) + "-" + id)
}

// Category returns a category that no other test uses, so that tests share a
// database without seeing each other. It begins with "test".
func Category(t testing.TB) messagestore.Category {
	t.Helper()
	return freshCategory()
}

func freshCategory() messagestore.Category {
	id := uuid.NewString()
	return messagestore.Category("test" + id[:8] + id[24:])
}
