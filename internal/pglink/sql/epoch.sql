select dibs.epoch()
