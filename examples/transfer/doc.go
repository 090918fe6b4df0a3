// Package transfer moves money from accounts, a table of this service, to a bank, which is another
// company's system and is reached over HTTP. A customer's order is carried out once, or has no
// effect, though processes are killed and the bank has a bad day.
//
//	txs, err := messagestore.Transactional[pgx.Tx](store)
//	service, err := transfer.New(txs, transfer.OnPostgres, nil)
//	http.ListenAndServe(address, service.Handler())  // orders, and the webhooks of the bank
//	service.Transfers.Run(ctx)                       // the sagas
//	relay, err := service.ToBank(url, nil)
//	relay.Run(ctx)                                   // the commands to the bank
//
// Each of the four parts of messaging has its place:
//
//   - An order comes over HTTP. Its key is reserved in one transaction with the start of its saga
//     ([inbox.Inbox.Receive]), so any number of copies of an order is one transfer.
//   - The saga debits the account: the row, the event of the account and the record of the step are
//     one transaction (a [saga.TxStep] with [saga.Write]).
//   - The saga asks the bank (a [saga.Ask]): the command is a message in the outbox
//     transfer:outgoing, and a relay posts it until the bank has taken it ([outbox.HTTP]).
//   - The bank answers when it likes, by a webhook that it may send several times. It is received
//     once, by a [inbox.Inbox] of its own, in one transaction with the reply to the saga.
//
// If the bank refuses, or does not answer in time, the saga goes back: it tells the bank to cancel,
// which is safe whether the bank has paid, has not paid yet or never heard of the order, and it
// gives the money back.
//
// The service, its relay and its runner may be one process or several, and any number of replicas.
package transfer
