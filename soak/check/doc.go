// Package check holds the files of a soak against Dibs' promises: the histories of all
// processes, the final table, and the facts that the harness measured.
//
// # The invariants
//
// W are the writes that were tried, of outcome OK, FAIL or INFO, where INFO is unknown: as the
// process was told, or because it never told. F is the final table. A write that Resolve found
// out about counts as the outcome that it found.
//
//	1   lost              what was acknowledged is in F. After a failover to an asynchronous
//	                      standby the end of what was written may be missing: only what was
//	                      acknowledged after the standby stopped to follow, beyond its category's
//	                      head on the new primary, and nothing that was begun after it is kept
//	2   phantom           what is in F was written by somebody who was not told the contrary
//	3   atomic batch      a write is in F whole, in order, in one piece, or not at all
//	4   dense             the positions of a stream are 0 to n-1
//	5   as reported       position, global position and content are in F as they were answered, and
//	                      of the writes of one id one at most was told that it was the first; who
//	                      writes the same again is told where it is, and not refused
//	6   unique            ids, positions in a stream, and global positions
//	7   monotone          global positions grow with the positions of a stream, and in a category from
//	                      what was acknowledged, or found written, to what was begun later
//	8   linearizable      each stream's version, as appends, conflicts and questions saw it
//	9   conflict truth    the version of a conflict is not the one expected, and the stream had it
//	10  complete          a consumer handled or parked all from its start position on
//	11  no skip           before it recorded a position, it had handled or parked all before that; of a group
//	                      that processes join, before one wrote the position of a slot, they all together had
//	12  order             a stream's messages are first delivered in order and without a gap; in one
//	                      run too; and a run begins with a stream where what is before was done
//	13  position          checkpoints do not go back, are not beyond what was answered, and of
//	                      two runs with one identity only the second goes on to record; the position of a
//	                      slot is moved by the member that holds it alone
//	14  redelivery bound  each run of a member is redelivered at most an interval and a batch, and as
//	                      much of each that was at work beside it; where slots are given up
//	                      in order, nothing that was handled before the first that was not
//	15  read honesty      every message read or delivered is in F, as it was
//	16  reservation       a key is reserved once by one who tried, and its effect is in the store once, and
//	                      outside at least once; who wanted the key for something else is told so
//	22  liveness          after the last fault all becomes quiet in time: no lag, locks, open
//	                      transactions or goroutines left over
//	23  hygiene           nothing unexpected in the log of PostgreSQL, pg_amcheck is content, memory does
//	                      not grow, no secret in any log
//	25  seats             of a group that processes join, each stored state has every slot once; a member takes
//	                      free slots, and no other member's but after its lease; what was removed writes no
//	                      more; and a run is delivered messages of its slots alone, from where they were left
//	C6  rewind            a consumer that is beyond what a failover kept is told so, though the store has
//	                      grown past it since, and nobody else is; one that is not beyond, and whose
//	                      work since a backup is undone, begins again
//
// The numbers that are missing are of parts that Dibs does not have.
//
// # What a pass says
//
// That no invariant was seen to be broken, and that the [Guards] are met: enough was done, refused,
// unknown and killed for that to say something. It is no proof.
package check
