// Package saga runs a process over several recorded steps, which ends with all of them done or all
// undone: a trip with a flight, a hotel and a car, where the customer gets either all three or
// nothing.
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
// The function is plain Go. It is run again from its start whenever the saga goes on: after a
// reply, after a time, or in another process after a crash. A recorded step returns its recorded
// outcome at once, by its name; the first step without a record is done. So the function does
// nothing but call steps and compute: it takes the time, random numbers and everything it reads
// from a step or from [Value].
//
// A step is recorded before it is done (Began, with its input) and afterwards (Done, with its
// output, in one write with the next Began). There is one exception: if a step has a nil undo and
// nothing else has to be recorded before it, as with the first step of a saga, its Began is written
// together with its Done. After a kill in between, no process knows whether the step happened: the
// next one does it again with the same [Key], by which the other side can tell. A [TxStep] is
// recorded in the transaction of its SQL, and is committed once. An [Ask] writes a command together
// with its Began, and waits for the reply.
//
// A waiting saga holds no goroutine, and all waiting sagas together hold at most 8 MiB of a
// process: the step returns [ErrWaiting], the function returns, and it is run again when the
// awaited message comes.
//
// # From outside
//
// [Receive] waits for a signal, such as a person's approval, which [Saga.Signal] writes. To run a
// child saga, call its Begin in a step and wait for its signal: see the example of child sagas.
//
// # Going back
//
// If an attempt at a step returns a refusal, which is an error of handler.Refuse, the step returns
// it to the function at once. It returns any other error when the attempts are used up. Package
// handler has a table of all dispositions: handler.Park suspends the saga, handler.RetryAfter asks
// for the next attempt, after at least a second if it names no pause. The function itself may
// return them too: handler.RetryAfter runs it again. If the function returns an error, the steps
// that began are undone, the last first, one at a time. If a step's outcome is unknown, it is
// undone too; its undo gets no output. The function does not run for this: an undo is called by the
// recorded name, with the recorded input. An undo that fails is called again without end, or
// suspends the saga, as its [StepConfig] says. [Saga.Cancel] and [Config].Deadline undo in the same
// way. After a step that is a pivot there is no way back.
//
// # Changed code
//
// A step begins only if the function has reached everything that is recorded, each step with the
// recorded input. If you change a function under a running saga so that it does something else, the
// saga is suspended before the function does anything. To change the function, raise
// [Config].Version and keep the previous version's function in Earlier.
//
// # Suspended
//
// A saga that cannot go on is suspended: [Saga.Status] has the reason. Once the cause is mended,
// [Saga.Resume] lets the saga go on; [Saga.Cancel] undoes it, and so does its deadline. Past a
// pivot, [Saga.Resolve] ends it in its present state. Saga.Run logs a warning for each suspended
// saga.
//
// If a step does not return within its timeout and five more seconds, it is abandoned: the attempt
// has failed, and nothing that it returns later counts. If the function of a saga calls no step for
// ten seconds, the saga is suspended.
//
// # Time
//
// Deadlines, timeouts, sleeps and pauses follow the store's clock. They do not end early by that
// clock, and end late if no process runs at the time. If the store's clock was ahead, the times
// computed from it are corrected once the clock is right, so that each wait takes as long as it
// should from then on.
//
// # Streams
//
// The saga 7 named booking is the stream booking:saga-7. Runners write to it at the version that
// they read. Replies, signals, cancels, resumes and resolutions come from outside at any version,
// and each gives the saga a turn: the saga is one item of the queue of streams booking:saga, and
// these messages wake the item. If two processes run one saga, the store refuses the later write
// because of its version; that process then cancels the contexts of its steps, and begins nothing
// more. A saga has at most 10,000 messages of its own, and as many again to be undone. While its
// stream has 20,000 messages it takes no signal and no reply, so that these never use up its room
// ([IsFull]). An input, an output and a value have at most 512 KiB as JSON.
package saga
