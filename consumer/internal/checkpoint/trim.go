package checkpoint

import "github.com/dibs-go/dibs/messagestore"

// Version returns the version of the stream that this run knows. Only the goroutine that writes may
// call it.
func (p *Place) Version() messagestore.Version { return p.version }
