// Package testkit is what tests of every package need: the value of a call that has to succeed
// ([Do]), a wait that ends with an explanation ([Await], [Receive]), the tier in which a test runs
// ([NeedsLong]), and seeds for fuzz tests.
package testkit
