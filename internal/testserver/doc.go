// Package testserver starts servers for tests as children of this process, which end when it ends, in
// any way ([Process]), and puts network faults between a PostgreSQL server and its clients
// ([Proxy]). The bench measures these servers, and the soak torments them.
package testserver
