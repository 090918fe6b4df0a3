package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// A row compares one figure of the expectation with the records'.
type row struct {
	name        string
	left, right string
	same        bool
	detail      bool // there is nothing to compare it to
}

// Equal adds a row of two numbers, each an int or a query, that should be equal.
func (b *Books) Equal(name string, want, got any) {
	w, g := b.Number(want), b.Number(got)
	b.rows = append(b.rows, row{name: name, left: Count(w), right: Count(g), same: w == g})
}

// Bound adds a row of a number that should be at most (<=) or at least (>=) another number.
func (b *Books) Bound(name, sign string, bound, got any) {
	m, g := b.Number(bound), b.Number(got)
	b.rows = append(b.rows, row{name: name, left: sign + " " + Count(m), right: Count(g), same: g == m || (g < m) == (sign == "<=")})
}

// Money adds a row of two sums in hundredths.
func (b *Books) Money(name string, want, got any) {
	w, g := b.Number(want), b.Number(got)
	b.rows = append(b.rows, row{name: name, left: crowns(w), right: crowns(g), same: w == g})
}

// Detail adds a number without a comparison.
func (b *Books) Detail(name string, got any) {
	b.rows = append(b.rows, row{name: "  " + name, right: Count(b.Number(got)), detail: true, same: true})
}

// MoneyDetail is Detail for a sum.
func (b *Books) MoneyDetail(name string, got any) {
	b.rows = append(b.rows, row{name: "  " + name, right: crowns(b.Number(got)), detail: true, same: true})
}

func crowns(cents int) string {
	sign := ""
	if cents < 0 {
		sign, cents = "-", -cents
	}
	return fmt.Sprintf("%s%d.%02d", sign, cents/100, cents%100)
}

// None adds the results of a query that should have no results.
func (b *Books) None(query string) { b.odd = append(b.odd, b.Texts(query)...) }

// Odd adds the description of something that should not exist.
func (b *Books) Odd(text string) { b.odd = append(b.odd, text) }

// Story adds the rows of a query, with times in microseconds and texts, in the order of time.
func (b *Books) Story(title, query string, args ...any) {
	lines := b.Texts(`select strftime('%H:%M:%S', at / 1000000, 'unixepoch') || printf('.%06d  %s', at % 1000000, text) from (`+query+`) order by at`, args...)
	if len(lines) > 0 {
		fmt.Fprintf(&b.told, "\n%s\n  %s\n", title, strings.Join(lines, "\n  "))
	}
}

// Say adds a line below the table.
func (b *Books) Say(format string, args ...any) { fmt.Fprintf(&b.told, format+"\n", args...) }

// print prints the verdict.
func (b *Books) print(out io.Writer, good string, took time.Duration) error {
	right := b.table(out)
	for _, odd := range b.odd[:min(len(b.odd), 5)] {
		fmt.Fprintln(out, "should not be there:", odd)
	}
	fmt.Fprint(out, b.told.String())
	if !right || len(b.odd) > 0 {
		fmt.Fprintf(out, "\nThe books differ (%.1f s).\n", took.Seconds())
		return ErrBooksDiffer
	}
	fmt.Fprintf(out, "\n%s (%.1f s).\n", good, took.Seconds())
	return nil
}

// table prints the rows, and reports whether all are right.
func (b *Books) table(out io.Writer) bool {
	right := true
	fmt.Fprintf(out, "\n%-38s %14s %14s\n", "", b.left, b.right)
	for _, r := range b.rows {
		mark := "ok"
		switch {
		case r.detail:
			mark = ""
		case !r.same:
			mark, right = "DIFFERS", false
		}
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%-38s %14s %14s  %s", r.name, r.left, r.right, mark), " "))
	}
	return right
}

// Judge prints only the table, and reports whether the verdict is good. It is for tests.
func (b *Books) Judge(out io.Writer) (right bool, err error) {
	return b.table(out) && len(b.odd) == 0, b.err
}

// Told returns the text below the table.
func (b *Books) Told() string { return b.told.String() }
