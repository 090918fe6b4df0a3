package booking

import (
	"context"
	"database/sql"
	"errors"

	"github.com/dibs-go/dibs/handler"
)

// makeTable makes the hotel's table, which has the free rooms of each city.
func makeTable(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `create table if not exists rooms (city text primary key, free int not null check (free >= 0))`)
	return err
}

// AddRooms adds rooms in a city.
func (s *Service) AddRooms(ctx context.Context, city string, rooms int) error {
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into rooms values ($1, $2) on conflict (city) do update set free = rooms.free + $2`, city, rooms)
		return err
	})
}

// FreeRooms returns how many rooms are free in a city.
func (s *Service) FreeRooms(ctx context.Context, city string) (free int, err error) {
	err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `select free from rooms where city = $1`, city).Scan(&free)
	})
	return free, err
}

// takeRoom is committed once, with the record that the step is done. So it needs no key.
func takeRoom(ctx context.Context, tx *sql.Tx, city string) (room int, err error) {
	err = tx.QueryRowContext(ctx, `update rooms set free = free - 1 where city = $1 and free > 0 returning free + 1`, city).Scan(&room)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, handler.Refuse(errors.New("no room in " + city))
	}
	return room, err
}

// giveBackRoom is called only if takeRoom was committed, so there is a room to give back.
func giveBackRoom(ctx context.Context, tx *sql.Tx, city string, _ *int) error {
	_, err := tx.ExecContext(ctx, `update rooms set free = free + 1 where city = $1`, city)
	return err
}
