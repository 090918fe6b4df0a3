// Package hash64 has the hash by which message-db divides a category among a consumer group.
package hash64

import (
	"crypto/md5" // as in message-db; nothing is kept secret with it
	"encoding/binary"
)

// Of is message-db's hash_64: the first 8 bytes of the MD5 of s, big-endian.
func Of(s string) int64 {
	sum := md5.Sum([]byte(s))
	return int64(binary.BigEndian.Uint64(sum[:8])) // the same 64 bits, signed
}
