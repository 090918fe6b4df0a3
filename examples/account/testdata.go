package account

import _ "embed"

// PaymentOrders is the file that the demo carries out: see testdata/README.md for
// where it comes from.
//
//go:embed testdata/payment-orders.csv
var PaymentOrders []byte
