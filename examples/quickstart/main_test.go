package main

func Example() {
	main()
	// Output:
	// Deposited account-123@0 {"amount":10}
}
