// Package handler passes stored messages to typed functions.
//
//	mux := handler.New()
//	handler.On(mux, accounts.deposit) // func(context.Context, handler.Message[Deposit]) error
//	handler.On(mux, accounts.withdraw)
//
// A consumer takes a [Mux]. The signature of a function is its registration. A message of a type
// without a function is an error, after which the consumer retries and loses nothing; a service
// that follows the events of another service calls [Mux.IgnoreUnknown].
//
// If a message is in an older form of a type, under another name or with other fields, it reaches
// the function of the current type, provided that the form is registered with it: see package
// upcast.
//
// Packages that make functions out of others, such as reservation and saga, return a [Handler],
// which [Register] registers:
//
//	handler.Register(mux, reservation.Inline(once, Deposit.Key, accounts.deposit))
//
// [Handler.Wrap] puts a wrapper around one handler, and [Mux.Use] a middleware around all of them.
// Both keep the checks and types that a consumer reads from the mux when it starts.
//
// # Mistakes
//
// A mistake in the registration, such as one type registered twice, does not panic and does not
// wait for a message of that type. The mux collects it; Validate returns it, and so does Handle for
// every message. A consumer calls Validate before it reads anything.
//
// # Failures
//
// If a function returns an error, or a body does not decode, [Mux.Handle] returns an error that
// names the message. The consumer decides whether the message is retried or parked, or whether the
// consumer stops.
//
//	handle Deposit account:command-123@0: insufficient funds
//
// # Dispositions
//
// By its error a function decides about the message: [Park], [RetryAfter], [Skip] and [Refuse]
// return such an error. You may wrap it, with fmt.Errorf and %w or by errors.Join. If there are
// several, the outermost counts, and of joined ones the first. [errors.Is] and [errors.As] find the
// cause in it. If a function panics, it has failed: a disposition that it panics with has no
// effect.
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
// The consumer's row applies under every ErrorPolicy. A redrive delivers a parked message. A relay
// belongs to package outbox: the error is its sink's, a dead message blocks its key, and
// RetryAfter(0) means the relay's own pause. A step, an undo, a function and Answer belong to
// package saga; the function that makes the command of an Ask counts as a step. If a step is
// refused, the function of the saga gets the refusal, and the saga is undone if the function
// returns it. A receiver belongs to a module in brokers. A scenario belongs to package handlertest,
// and fails unless the test expects the error.
//
// Errors of Dibs have dispositions, too: data that do not decode are refused, and an idempotence
// key that is used for something else parks its message.
package handler
