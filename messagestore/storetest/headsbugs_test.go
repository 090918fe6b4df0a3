package storetest

import (
	"context"
	"maps"
	"slices"

	"github.com/dibs-go/dibs/messagestore"
)

var headsBugs = []bug{
	{"a head is where the category goes on", []string{"Heads/AreWhereCategoriesEnd"}, func(d *driver) {
		d.heads = answering(d.Driver.Heads, func(_ []messagestore.Category, heads *[]messagestore.GlobalPosition) {
			for i := range *heads {
				(*heads)[i]++
			}
		})
	}},
	{"heads are those of a moment ago", []string{"Heads/SeeEveryWriteThatReturned"}, func(d *driver) {
		var before []messagestore.GlobalPosition
		d.heads = answering(d.Driver.Heads, func(_ []messagestore.Category, heads *[]messagestore.GlobalPosition) {
			if len(before) == len(*heads) {
				*heads, before = before, *heads
			} else {
				before = *heads
			}
		})
	}},
	{"heads are in the order of the names, each once", []string{"Heads/AreInTheOrderAskedFor"}, func(d *driver) {
		d.heads = func(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
			names := map[messagestore.Category]bool{}
			for _, c := range categories {
				names[c] = true
			}
			return d.Driver.Heads(ctx, slices.Sorted(maps.Keys(names)))
		}
	}},
	{"heads of the first 100 categories alone", []string{"Heads/OfManyAreTold"}, func(d *driver) {
		d.heads = func(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
			heads, err := d.Driver.Heads(ctx, categories[:min(100, len(categories))])
			return append(heads, make([]messagestore.GlobalPosition, len(categories)-len(heads))...), err
		}
	}},
}
