select dibs.listen()
