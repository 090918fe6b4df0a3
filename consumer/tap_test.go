package consumer_test

import (
	"context"
	"errors"
	"sync"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// A tap is a store whose calls a test sees and can spoil.
type tap struct {
	*messagestore.Store

	mu    sync.Mutex
	write func(stream messagestore.StreamName) error                             // instead of a write
	wrote func(stream messagestore.StreamName, body messagestore.Body)           // after one
	lost  func(stream messagestore.StreamName) error                             // after one, instead of its answer
	read  func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) // instead of a read
	look  func(stream messagestore.StreamName) error                             // instead of a look at a stream
	park  func() error                                                           // instead of parking
	parks func(p queuing.Parking)                                                // after it
	take  func(queuing.Take) error                                               // instead of a take
	took  func(queuing.Take) error                                               // after one, instead of its answer
}

// Driver returns the driver with the spoiled calls.
func (s *tap) Driver() (messagestore.Driver, error) {
	driver, err := s.Store.Driver()
	queues, keeps := driver.(queuing.Driver)
	if !keeps {
		return driver, err
	}
	return &tappedDriver{queues, s}, err
}

type tappedDriver struct {
	queuing.Driver

	tap *tap
}

func (d *tappedDriver) QueuePark(ctx context.Context, p queuing.Parking) (bool, error) {
	d.tap.mu.Lock()
	defer d.tap.mu.Unlock()
	if d.tap.park != nil {
		if err := d.tap.park(); err != nil {
			return false, err
		}
	}
	parked, err := d.Driver.QueuePark(ctx, p)
	if parked && d.tap.parks != nil {
		d.tap.parks(p)
	}
	return parked, err
}

func (d *tappedDriver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	d.tap.mu.Lock()
	defer d.tap.mu.Unlock()
	if d.tap.take != nil {
		if err := d.tap.take(t); err != nil {
			return queuing.Taken{}, err
		}
	}
	taken, err := d.Driver.QueueTake(ctx, t)
	if err == nil && d.tap.took != nil {
		err = d.tap.took(t)
	}
	return taken, err
}

func (s *tap) set(change func(*tap)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *tap) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.write != nil {
		if err := s.write(stream); err != nil {
			return messagestore.Written{}, err
		}
	}
	written, err := s.Store.Write(ctx, stream, expected, bodies...)
	if err == nil && s.wrote != nil {
		s.wrote(stream, bodies[0])
	}
	if err == nil && s.lost != nil {
		if err := s.lost(stream); err != nil {
			return messagestore.Written{}, err
		}
	}
	return written, err
}

func (s *tap) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	s.mu.Lock()
	read := s.read
	s.mu.Unlock()
	if read != nil {
		if page, err := read(q); page != nil || err != nil {
			if page == nil {
				page = &messagestore.CategoryPage{}
			}
			return *page, err
		}
	}
	return s.Store.ReadCategoryPage(ctx, q)
}

func (s *tap) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	s.mu.Lock()
	look := s.look
	s.mu.Unlock()
	if look != nil {
		if err := look(stream); err != nil {
			return nil, err
		}
	}
	return s.Store.Last(ctx, stream)
}

// positions is the category of the consumers of account.
var positions = account.WithType("position")

var errStore = errors.New("the store is away")

// A lastingError is one that a store says will not go away.
type lastingError struct{}

func (lastingError) Error() string        { return "not migrated" }
func (lastingError) Is(target error) bool { return target == calling.ErrLasting }
