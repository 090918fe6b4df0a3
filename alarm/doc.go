// Package alarm writes messages that come at their time: a deadline, a retry, a reminder. An alarm
// is set by a message in the caller's own write, so it is there exactly if the rest of that write is.
//
//	clock, err := alarm.New(store, "booking:saga", nil)
//	deadline, err := clock.At(time.Now().Add(time.Hour), saga, version, Expired{})
//	written, err := store.WriteStreams(ctx, messagestore.To(saga, version-1, began), deadline)
//
//	err = clock.Run(ctx) // in each replica: it rings
//
// # What is promised
//
// To ring is to append the alarm's message to its stream, at the version that the alarm was set with.
// If the stream has moved on by then, nothing is written: the alarm came too late to matter. So a caller
// cancels an alarm by writing to its stream. An alarm rings once, however many processes and crashes
// there are: its message has an id that follows from the alarm.
//
// No alarm rings before its time by the clock of the process that rings, and all ring in the end. While
// a process runs, they are some milliseconds late. Alarms whose time passed while no process ran ring
// when a process starts.
//
// # How it works
//
// An alarm is a message Set in the stream of its minute: booking:saga+alarm-20261122T2110, in UTC. When
// the minute begins, a message Due is added to its stream, once, by whichever process is first. A
// consumer delivers it to one process, which reads the stream, rings each alarm at its time, and, when the
// minute is over, closes it: it appends Closed at the version that it has read. Another alarm that was
// set meanwhile makes that a version conflict, and the process reads on. If the process ends
// before, Due is delivered again, as any message is. Another consumer looks at each Set: it adds Due to a
// minute that has begun already, and rings an alarm that comes behind Closed.
//
// So there is no leader, no table of timers and no scan: a process that starts looks at the minutes since
// the last minute that was begun.
package alarm
