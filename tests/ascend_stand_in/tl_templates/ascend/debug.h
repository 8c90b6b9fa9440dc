// nothing is printed
