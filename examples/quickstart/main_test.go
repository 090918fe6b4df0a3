package main

func Example() {
	main()
	// Output:
	// <nil>
	// Deposited account-123@0 <nil>
}
