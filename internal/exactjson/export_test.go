package exactjson

// Work returns how many bytes are written, and how many keys compared, to have valid JSON in its one spelling or its one reading.
func Work(raw []byte, spelled bool) int {
	w := newWriter(raw, spelled)
	defer w.free()
	_ = w.all()
	w.appendTo(nil)
	return w.work
}
