// Package check holds the files of a soak against Dibs' promises: the histories of all
// processes, the final table, and the facts that the harness measured.
//
// # The invariants
//
// W are the writes that were tried. The outcome of each is OK, FAIL, or INFO for unknown: as its
// process was told, or because its process never said. F is the final table. If Resolve found a
// write's outcome, that outcome counts.
//
//	1   lost              an acknowledged message is in F. A failover to an asynchronous standby may
//	                      lose the end of a category: only messages that were acknowledged after
//	                      the standby had ceased to follow, and that are beyond the category's head
//	                      on the new primary. No write that was begun after a lost one is kept
//	2   phantom           each message in F was written by a caller that was not told the contrary
//	3   atomic batch      a write is in F whole, in order, in one piece, or not at all
//	4   dense             the positions of a stream are 0 to n-1
//	5   as reported       position, global position and content are in F as the writer was told; at
//	                      most one writer of an id was told that it was the first; a repeat of a
//	                      write is told where the write is, and is not refused
//	6   unique            no two messages have one id, one position in a stream, or one global
//	                      position
//	7   monotone          global positions grow with the positions of a stream. In a category they
//	                      grow from a write that was acknowledged, or found written, to every write
//	                      that was begun later
//	8   linearizable      each stream's version, as appends, conflicts and questions saw it
//	9   conflict truth    the version of a conflict is not the expected version, and the stream had it
//	10  complete          a consumer handled or parked every message from its start position on
//	11  no skip           before a consumer stored a checkpoint, it had handled or parked every message
//	                      before it; before a member of a group wrote the position of a slot, the
//	                      members together had
//	12  order             the messages of a stream are first delivered in order and without a gap,
//	                      and so they are within each run; a run begins with a stream only where the
//	                      messages before are handled
//	13  position          checkpoints do not go back, and are not beyond what the store had answered;
//	                      of two runs with one identity only the second goes on to checkpoint; only
//	                      the member that holds a slot moves its position
//	14  redelivery bound  a run of a member gets at most an interval and a batch of messages again,
//	                      and as much for each run that worked beside it; where slots are given up in
//	                      order, no message that was handled before the first open one is delivered
//	                      again
//	15  read honesty      every message read or delivered is in F, as it was
//	16  reservation       a key is reserved once, by a command that tried to; its effect is in the
//	                      store once, and outside at least once; a command that asks for something
//	                      else with the key is told so
//	22  liveness          after the last fault everything becomes quiet in time: no lag, locks, open
//	                      transactions or goroutines are left
//	23  hygiene           nothing unexpected is in the log of PostgreSQL, pg_amcheck finds nothing,
//	                      memory does not grow, and no log has a secret
//	25  seats             each stored state of a group has every slot once; a member takes free slots,
//	                      and another member's only after its lease; a removed member writes no more;
//	                      a run is delivered messages of its own slots alone, from where the last
//	                      holder left them
//	C6  rewind            a consumer that is beyond what a failover kept is told so, though the store
//	                      has grown past it since; a consumer that is not beyond is not told so, and
//	                      begins again if its work since a backup is undone
//
// Missing numbers belong to parts that Dibs does not have.
//
// # What a pass says
//
// No invariant was seen to be broken, and the [Guards] are met: enough writes were done, refused and
// unknown, and enough processes were killed, for that to say something. It is no proof.
package check
