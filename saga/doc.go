// Package saga runs a process over several recorded steps, which ends with all of them done or all undone:
// a trip with a flight, a hotel and a car, and the customer gets all or none.
//
//	txs, err := messagestore.Transactional[pgx.Tx](store) // the store of the sagas
//	...
//	flight := saga.NewStep("flight", air.Book, air.Cancel, nil)
//	seats := saga.NewTxStep("seats", txs, take, giveBack, nil)
//	paid := saga.NewAsk("paid", charge, refund, &saga.StepConfig{Timeout: 10 * time.Minute})
//
//	func book(s *saga.Run, t Trip) (Itinerary, error) {
//		f, err := flight.Do(s, t.Flight)
//		if err != nil {
//			return Itinerary{}, err // an error undoes the steps that began
//		}
//		...
//	}
//
//	booking, err := saga.New(store, "booking", book, saga.Steps{flight, seats, paid}, &saga.Config{Deadline: time.Hour})
//	err = booking.Run(ctx) // in each replica
//	status, err := booking.Begin(ctx, trip.ID, trip)
//
// # Going on
//
// The function is plain Go. It is run again from its start whenever the saga goes on: after a reply, after
// a time, or in another process after a crash. A recorded step answers at once, by its name, with its
// recorded outcome; the first step without a record is done. So the function does nothing but call steps
// and compute: its time, its random numbers and its reads come from a step or from [Value].
//
// A step is recorded before it is done (Began, with its input) and afterwards (Done, with its output, in
// one write with the next Began). Only a step with a nil undo before which there is nothing else to record, such as the
// first of a saga, has its Began written with its Done. After a kill in between, no process knows whether the step happened:
// the next one does it again with the same [Key], by which the other side can tell. A [TxStep] is recorded in
// the transaction of its SQL, and is committed once. An [Ask] writes a command together with its Began,
// and waits for the reply.
//
// A saga that waits holds no goroutine, and all that wait hold at most 8 MiB of a process: the step returns [ErrWaiting], the function returns,
// and it is run again when the awaited message comes.
//
// # From outside
//
// [Receive] waits for a signal, such as a person's approval, which [Saga.Signal] writes. A saga starts another by a step that
// calls its Begin, and awaits it by a signal: see the example of child sagas.
//
// # Going back
//
// The step returns a refusal, which is an error of handler.Refuse, to the function at once, and any other
// error when the attempts are used up. Package handler has a table of all dispositions: an error of
// handler.Park suspends the saga, handler.RetryAfter asks for the next attempt, after at least a second if it names no pause. The function itself returns
// them too: an error of handler.RetryAfter has it run again. If the function returns an error, the steps
// that began are undone, the last first, one at a time. A step of unknown outcome is undone too; its undo
// gets no output. The function is not run: an undo is called by the recorded name, with the recorded
// input. An undo that fails is called again for ever, or suspends the saga, as its [StepConfig] says.
// [Saga.Cancel] and [Config].Deadline undo in the same way. Behind a step that is a pivot there is no way
// back.
//
// # Changed code
//
// A step begins only if the function has reached everything that is recorded, each step with the recorded
// input. If a function was changed under a running saga so that it does something else, the saga is suspended
// before the function does anything. To change it, raise [Config].Version and keep the function of the
// version before in Earlier.
//
// # Suspended
//
// A saga that cannot go on is suspended: [Saga.Status] has the reason. When that is mended, [Saga.Resume] has
// the saga go on; [Saga.Cancel] undoes it, and so does its deadline. Behind a pivot [Saga.Resolve] ends it as it is.
// Saga.Run logs a warning for each suspended saga.
//
// A step that does not return within its time-out and five seconds more is left to go on by itself: the attempt has
// failed, and nothing that it returns later counts. A function of a saga that calls no step for ten seconds suspends it.
//
// # Time
//
// Deadlines, time-outs, sleeps and pauses are by the store's clock. They do not end early by it, and end late by as much
// as no process runs. What a clock computed that was ahead takes as long as it should from when the clock is right again.
//
// # Streams
//
// The saga 7 of the name booking is the stream booking:saga-7. Runners write to it at the version before.
// Replies, signals, cancels, resumes and resolutions come from outside at any version, and each is a reason to go on:
// the saga is one item of the queue of streams booking:saga, which these messages wake. If two processes run one saga, the store refuses the late
// one's write by its version; that process cancels the contexts of its steps, and begins nothing more.
// A saga has at most 10,000 messages of its own, and as many again to be undone; while its stream has 20,000 it takes no signal and no
// reply, so these never use up its room ([IsFull]); an input, an output and a value have
// at most 512 KiB as JSON.
package saga
