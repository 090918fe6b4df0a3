package pgtest

var CopyOn = copyOn
