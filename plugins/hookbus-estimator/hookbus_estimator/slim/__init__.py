"""Has the parts that the functions of TF-Slim share with Estimator."""
