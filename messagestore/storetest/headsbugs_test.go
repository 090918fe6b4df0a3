package storetest

import (
	"context"
	"maps"
	"slices"

	"github.com/dibs-go/dibs/messagestore"
)

var headsBugs = []bug{
	{"a head is where the category goes on", []string{"Heads/AreWhereCategoriesEnd"}, func(d *driver) {
		d.heads = func(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
			heads, err := d.soundHeads(ctx, categories)
			for i := range heads {
				heads[i]++
			}
			return heads, err
		}
	}, nil},
	{"heads are those of a moment ago", []string{"Heads/SeeEveryWriteThatReturned"}, func(d *driver) {
		var before []messagestore.GlobalPosition
		d.heads = func(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
			heads, err := d.soundHeads(ctx, categories)
			if len(before) == len(heads) {
				heads, before = before, heads
			} else {
				before = heads
			}
			return heads, err
		}
	}, nil},
	{"heads are in the order of the names, each once", []string{"Heads/AreInTheOrderAskedFor"}, func(d *driver) {
		d.heads = func(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
			names := map[messagestore.Category]bool{}
			for _, c := range categories {
				names[c] = true
			}
			return d.soundHeads(ctx, slices.Sorted(maps.Keys(names)))
		}
	}, nil},
	{"heads of the first 100 categories alone", []string{"Heads/OfManyAreTold"}, func(d *driver) {
		d.heads = func(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
			heads, err := d.soundHeads(ctx, categories[:min(100, len(categories))])
			return append(heads, make([]messagestore.GlobalPosition, len(categories)-len(heads))...), err
		}
	}, nil},
}
