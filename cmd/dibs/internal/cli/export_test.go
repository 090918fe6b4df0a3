package cli

// EndOf is endOf, to count what it reads.
var EndOf = endOf
