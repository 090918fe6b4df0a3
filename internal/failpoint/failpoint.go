// Package failpoint lets a test program die, fail or wait at named points of the library.
// Without the build tag failpoint, as in every release, the points compile to nothing.
//
// With it, a program does what DIBS_FAILPOINTS says: points separated by commas, each
// with what to do and how often, and the seed that decides when.
//
//	DIBS_FAILPOINTS=seed=7,consumer/handled=kill:0.001,postgres/send=sleep:0.01
//
// How often is a chance, or as @250 the 250th time and no other.
//
// kill is SIGKILL to the process itself, which first names the point on standard error.
// err is an error from the point, sleep a wait of up to 200 ms. A point that is not named
// does nothing.
package failpoint
