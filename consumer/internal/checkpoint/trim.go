package checkpoint

import "github.com/dibs-go/dibs/messagestore"

// Version returns the version of the stream as this run knows it. It belongs to the goroutine that
// writes.
func (p *Place) Version() messagestore.Version { return p.version }
