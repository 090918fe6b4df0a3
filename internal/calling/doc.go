// Package calling is what the library and the functions that it calls for you tell each other. The
// context of a call has its [Caller], for lower packages. A panic becomes an error with its stack, so
// that the place of the panic is in the log ([Call]). An error may have a disposition, by which the
// function decides about its message or its step: park it, retry it after a given time, skip it, or
// refuse it. Package handler exports the constructors; packages below it, such as messagestore, use
// this one.
package calling
