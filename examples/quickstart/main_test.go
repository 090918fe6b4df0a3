package main

func Example() {
	main()
	// Output:
	// inserted before: false
	// inserted before: true
	// inserted before: true
	// mail to ann
}
