package storetest

var modelTests []test
