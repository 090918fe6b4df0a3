// Booking runs the booking service of trips, and shows it at work.
//
//	booking demo        some trips beside an airline with a bad day, and the story of a trip that was undone
//	booking run         a replica, until interrupted
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dibs-go/dibs/examples/booking"
	"github.com/dibs-go/dibs/examples/booking/fakeairline"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/saga"
)

type grammar struct {
	Demo demoCommand `cmd:"" help:"Book some trips and show how each ends."`
	Run  runCommand  `cmd:"" help:"Book trips until interrupted, beside other replicas."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 2 {
		os.Args = append(os.Args, "--help")
	}
	command := kong.Parse(&grammar{}, kong.Name("booking"),
		kong.Description("Trips with a flight, a hotel and a car, of which a customer gets all or none. A database is sqlite:FILE, or a postgres://... that \"dibs migrate up\" has prepared."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 80}), kong.BindTo(ctx, (*context.Context)(nil)))
	command.FatalIfErrorf(command.Run())
}

type runCommand struct {
	Database string `required:"" env:"DIBS_STORE" placeholder:"URL" help:"The database."`
	Airline  string `required:"" placeholder:"URL" help:"The airline."`
}

// Run runs a replica.
func (c *runCommand) Run(ctx context.Context) error {
	s, err := booking.Open(ctx, booking.Config{Database: c.Database, Airline: c.Airline})
	if err != nil {
		return err
	}
	return errors.Join(s.Run(ctx), s.Close())
}

type demoCommand struct {
	Database string `env:"DIBS_STORE" placeholder:"URL" help:"The database. Defaults to a file of SQLite in a new folder."`
}

// Run books the trips of the demo.
func (c *demoCommand) Run(ctx context.Context) (err error) {
	if c.Database == "" {
		dir, err := os.MkdirTemp("", "booking")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		c.Database = "sqlite:" + filepath.Join(dir, "trips.db")
	}
	air := &fakeairline.Airline{}
	server := httptest.NewServer(air)
	defer server.Close()
	s, err := booking.Open(ctx, booking.Config{Database: c.Database, Airline: server.URL, Logger: logger.Silent()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended, s.Close())
	}()
	return show(ctx, s, air)
}

func show(ctx context.Context, s *booking.Service, air *fakeairline.Airline) error {
	run := time.Now().UTC().Format("20060102T150405.000")
	if err := s.AddRooms(ctx, "Lisbon", 2); err != nil {
		return err
	}
	if err := s.AddRooms(ctx, "Atlantis", 1); err != nil {
		return err
	}
	before, err := s.FreeRooms(ctx, "Lisbon")
	if err != nil {
		return err
	}
	fmt.Printf("Lisbon has %d rooms. The airline drops the answer to the first booking.\n\n", before)
	air.Drop(1)
	want := 0
	for i, one := range []struct {
		trip   booking.Trip
		booked bool
	}{
		{booking.Trip{City: "Lisbon", Car: "small"}, true},
		{booking.Trip{City: "Lisbon", Car: "large"}, true},
		{booking.Trip{City: "Lisbon", Car: "limousine"}, false},
		{booking.Trip{City: "Atlantis", Car: "small"}, false},
		{booking.Trip{City: "Porto", Car: "small"}, false},
	} {
		id := fmt.Sprintf("%s.%d", run, i+1)
		if _, err := s.Trips.Begin(ctx, id, one.trip); err != nil {
			return err
		}
		status, err := s.Trips.Wait(ctx, id)
		if err != nil {
			return err
		}
		fmt.Printf("trip %d to %-8s with a %-9s %-11s", i+1, one.trip.City, one.trip.Car, status.State)
		if booked := status.State == saga.StateCompleted; booked != one.booked {
			return errors.New("the trip ended in another way than it should")
		}
		if one.booked {
			want++
			fmt.Printf(" flight %s, room %d, car %s\n", status.Out.Flight, status.Out.Room, status.Out.Car)
			continue
		}
		fmt.Printf(" %s\n", status.Reason)
		for _, step := range status.Steps {
			fmt.Printf("       %-6s attempts %d, done %-5v undone %v\n", step.Step, step.Attempts, step.Done, step.Undone)
		}
	}
	_, valid := air.Tickets()
	after, err := s.FreeRooms(ctx, "Lisbon")
	if err != nil {
		return err
	}
	fmt.Printf("\n%d trips booked, %d valid tickets, %d rooms taken\n", want, valid, before-after)
	if valid != want || before-after != want {
		return errors.New("the books do not agree")
	}
	return nil
}
