// Package handler passes stored messages to typed functions.
//
//	mux := handler.New()
//	handler.On(mux, accounts.deposit) // func(context.Context, handler.Message[Deposit]) error
//	handler.On(mux, accounts.withdraw)
//
// A consumer takes a [Mux]. The signature of a function is its registration. A message of
// a type that no function takes is an error, after which the consumer retries and loses nothing;
// a service that follows another's events calls [Mux.IgnoreUnknown].
//
// A message in an older form of a type, under another name or with other fields, reaches the
// function of the present type if the form is registered beside it: see package upcast.
//
// Packages that make a function out of others, such as reservation and saga, return a [Handler],
// which [Register] registers:
//
//	handler.Register(mux, reservation.Inline(once, Deposit.Key, accounts.deposit))
//
// [Handler.Wrap] puts a wrapper around one of them, and [Mux.Use] a middleware around all. Both keep
// what a consumer asks the mux for when it starts.
//
// # Mistakes
//
// A mistake in the registration, such as one type registered twice, does not
// panic and does not wait for a message of that type. The mux keeps it; Validate
// returns it, and so does Handle for every message. A consumer calls Validate before it
// reads anything.
//
// # Failures
//
// An error of a function and a body that does not decode come out of [Mux.Handle] as an
// error that names the message. The consumer decides whether the message is retried,
// parked or stops it.
//
//	handle Deposit account:command-123@0: insufficient funds
//
// # Dispositions
//
// A function says by its error what becomes of the message: [Park], [RetryAfter], [Skip] and [Refuse] return
// such an error. It may be wrapped, with fmt.Errorf and %w or by errors.Join; of several the outermost counts, and of
// joined ones the first. [errors.Is] and [errors.As] find the cause in it. A function that panics has failed: a
// disposition that it panics with has no effect.
//
//	place      Park               RetryAfter              Skip                Refuse
//
//	consumer   parked now         again after d,          counted, logged;    its ErrorPolicy's Then
//	                              not counted             the next message    now, without retries
//	redrive    parked again       parked again            not parked any      parked again
//	                                                      more; logged
//	relay      dead now           sent again after d,     not sent; counted,  dead now
//	                              at most an hour         logged; the next
//	step       the saga is        the next attempt after  a mistake: the      no other attempt: the
//	           suspended          d, not counted          saga is suspended   step is refused
//	undo       the saga is        the next attempt after  a mistake: the      the saga is
//	           suspended          d, not counted          saga is suspended   suspended
//	function   the saga is        run again after d       a mistake: the      the saga is undone
//	of a saga  suspended                                  saga is suspended
//	Answer     as a consumer      as a consumer           as a consumer       the step is refused
//	scenario   the next message;  the end;                the next message;   the end;
//	           ThenParked         ThenRetryAfter          ThenSkipped         ThenRefused
//	receiver   recorded, and not  delivered again         acknowledged;       recorded, and not
//	           delivered again    after d                 counted, logged     delivered again
//
// The consumer's row holds under every ErrorPolicy. A redrive delivers a parked message. A relay is of package outbox,
// a dead message of it holds its key, and the function is its sink's; a d that is not above 0 is the relay's own pause there. A step, an
// undo, a function and Answer are of package saga; the function that makes the command of an Ask is as a
// step. A refused step is returned to the function of the saga, which is undone if that returns the
// error. A receiver is of a module in brokers. A scenario is of package handlertest, and fails unless the
// test asks for the error.
//
// Errors of Dibs have dispositions of their own, and say so: data that do not decode are refused, and an
// idempotence key that is used for something else parks its message.
package handler
