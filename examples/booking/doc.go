// Package booking books trips as a saga: a flight, a hotel and a car. The customer gets all three
// or nothing, even if processes are killed or one of the three refuses.
//
//   - The hotel's rooms are in a table of this service: the row and the record of it are one
//     transaction, a [saga.TxStep].
//   - The flight is a call over HTTP to an airline, which knows a booking by its Idempotency-Key: a
//     [saga.Step].
//   - The car is a command to another component, which answers when it has one: a [saga.Ask].
//     Flight and car are booked side by side.
//
// Version 1 of the saga had no car, and took the flight first. Trips that it began go on in that
// version.
//
// The tests show each way in which a trip can end, most of them in a bubble of [testing/synctest],
// where an hour takes no time.
package booking
