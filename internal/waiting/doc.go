// Package waiting is how a caller waits for a store: for the message that ends its wait ([Wakeups],
// [WatchStreams]), and for a result that is certain ([Loop]). A write with a lost answer may have
// happened, even if the next attempt ends with another error: an [Outcome] keeps track of that.
package waiting
