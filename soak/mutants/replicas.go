package mutants

import "slices"

// replicas are bugs of groups that processes join by their names.
func replicas() []*Mutant {
	const in = "consumer/internal/checkpoint"
	return []*Mutant{
		{"removed-goes-on", "a member that another removed takes its slots again, and goes on", code(
			edit(in, "case err == nil && p.group.member(p.me.ID) == nil:", `
				case err == nil && p.group.member(p.me.ID) == nil:
				p.group.Members = append(p.group.Members, p.me)
				p.group.move(p.slots, p.me.ID)
				return nil
				case false:`),
		), crowds, slices.Concat(seats, positions)},
		{"lease-half", "the lease of a member is over after half of its time", code(
			edit(in, "return written.Add(m.Patience()), !m.Resting", "return written.Add(m.Patience() / 2), !m.Resting"),
			edit(in, "return m.At.Add(m.Patience()), !m.Resting", "return m.At.Add(m.Patience() / 2), !m.Resting"),
		), crowds, seats},
		{"begins-ahead", "a member begins at the highest position of its slots, and not at the lowest", code(
			edit(in, "return slices.MinFunc(parts, byPosition).Checkpoint", "return slices.MaxFunc(parts, byPosition).Checkpoint"),
		), crowds, skips},
		{"leaves-as-it-came", "a member leaves with the position of the last checkpoint, and not of what it has handled", code(
			edit("consumer", "err := place.Write(ctx, at.Checkpoint, at.failing, r.reader.mark, !r.stays)", `
				if !r.stays {
					at.Checkpoint = place.Checkpoint
				}
				err := place.Write(ctx, at.Checkpoint, at.failing, r.reader.mark, !r.stays)`),
		), crowds, broken("C4a", "C4b", "C4c")},
		{"takes-what-is-held", "a member takes the slots that it should have, held or free", code(
			edit(in, "case n < 0:", "case g.Held(id).Len() < g.share(id): g.move((AllSlots &^ g.Held(id)).some(g.share(id)-g.Held(id).Len(), false), id)\ncase n < 0:"),
		), crowds, slices.Concat(seats, positions)},
	}
}
