// Package origin tells which process wrote a message, so that another process of the same
// machine can find out that it is gone. It knows that on Linux only.
package origin

// An Origin is a process. The zero value is one that is not known, and never gone.
type Origin struct {
	Boot      string `json:"boot,omitempty"`      // of the machine: the id of its boot
	Namespace string `json:"namespace,omitempty"` // of process ids
	PID       int    `json:"pid,omitempty"`
	Started   uint64 `json:"started,omitempty"` // in the ticks of the boot's clock: a later process may get the same id
}

// Gone reports whether the process has surely ended: it was one of this boot and of this
// namespace of process ids, and is there no more.
func (o Origin) Gone() bool {
	self := Self()
	if o == (Origin{}) || o.Boot == "" || o.Namespace == "" || o.Boot != self.Boot || o.Namespace != self.Namespace || o.PID <= 0 {
		return false
	}
	return o != self && ended(o)
}
